"""`quietcount dashboard`: a page, and an API, over the histogram topics. It reads nothing else, and has nothing exact to show.

config      what it takes from the settings file
snapshots   one snapshot, its pages put together
history     the last ticks of every stream
hub         who watches, and what each is sent
feed        reads Kafka
guard       reading only, tokens, headers
unreadable  what is no request at all
api         the routes
server      all of it as a process or a thread
page/       HTML, CSS and JavaScript, as browsers take them
"""
