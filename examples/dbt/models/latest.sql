-- What each stream showed at its newest tick.
select items.*
from {{ source('quietcount', 'items') }} items
join (
    select histogram, key, arg_max(id, "end") as id, max("end") as "end"
    from {{ source('quietcount', 'ticks') }} ticks
    group by histogram, key
) newest using (histogram, key, id, "end")
