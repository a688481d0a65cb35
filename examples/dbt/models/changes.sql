-- The change of each item over each window of the settings, also over the end of an epoch.
with spans as (
    select
        histogram,
        key,
        id,
        previous_id,
        tick,
        "end" - tick * ("end" - start) as begun,
        unnest(windows) as span
    from {{ source('quietcount', 'ticks') }} ticks
)
select
    present.histogram,
    present.key,
    present.id,
    present.tick,
    present."end",
    present.end_time,
    span.ms as over_ms,
    present.item,
    present.count + coalesce(last.count, 0) - coalesce(earlier.count, 0) as change,
    span.sd as change_sd,
    present.sum + coalesce(last.sum, 0) - coalesce(earlier.sum, 0) as sum_change,
    span.sum_sd as sum_change_sd
from spans
join {{ source('quietcount', 'items') }} present using (histogram, key, id, tick)
left join {{ source('quietcount', 'items') }} last
    on span.ticks > spans.tick
    and last.histogram = spans.histogram
    and last.key = spans.key
    and last.id = spans.previous_id
    and last.item = present.item
    and last."end" = spans.begun
left join {{ source('quietcount', 'items') }} earlier
    on earlier.histogram = spans.histogram
    and earlier.key = spans.key
    and earlier.id = if(span.ticks > spans.tick, spans.previous_id, spans.id)
    and earlier.item = present.item
    and earlier.tick = spans.tick - span.ticks + coalesce(last.tick, 0)
where span.ticks = spans.tick
    or (earlier.tick is not null and (span.ticks < spans.tick or last.tick is not null))
