-- The lane of each aggregate's events, for $1 lanes.
SELECT type, id, (hashtextextended(id, hashtextextended(type, 0)) & ($1::bigint - 1))::int
FROM torture.aggregates;
