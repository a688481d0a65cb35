-- What each stream showed at its newest tick.
create or replace view latest as
select items.*
from items
join (
    select histogram, key, arg_max(id, "end") as id, max("end") as "end"
    from ticks
    group by histogram, key
) newest using (histogram, key, id, "end");
