-- A row for each tick: the sum of what it shows, and what is not shown, with their errors.
create or replace view totals as
with counted as (
    select histogram, key, id, tick, sum(count)::bigint as shown_count
    from items
    group by all
)
select
    ticks.histogram,
    ticks.key,
    ticks.id,
    ticks.tick,
    ticks."end",
    ticks.end_time,
    ticks.window_ms,
    ticks.shown,
    coalesce(counted.shown_count, 0) as shown_count,
    ticks.sd * sqrt(ticks.shown) as shown_sd,
    ticks.all_items,
    ticks.all_items_sd,
    ticks.all_items - coalesce(counted.shown_count, 0) as others,
    sqrt(ticks.all_items_sd ** 2 + ticks.shown * ticks.sd ** 2) as others_sd
from ticks
left join counted using (histogram, key, id, tick)
where ticks.shown is not null;
