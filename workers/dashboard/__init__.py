"""`quietcount dashboard`: a page and an API over the histogram topics; it reads nothing else.

config      the settings it needs
snapshots   one snapshot, put together from its pages
history     the last ticks of every stream
hub         the viewers, and what is sent to each
feed        reads Kafka
guard       refuses all but reading, checks tokens, sets headers
unreadable  answers to unreadable requests
parameters  reads what is asked
api         the routes
api_history those over the store
store/      what was read, in a file
server      runs all of it, as a process or in a thread
page/       HTML, CSS and JavaScript, as browsers take them
"""
