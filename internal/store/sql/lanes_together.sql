-- Keeps a subscription's lanes ($1) as they are until the transaction ends, and says whether nobody has one and all stand at
-- one position, with no window open.
-- Walks the primary keys; locks the rows.
WITH s AS MATERIALIZED (
    SELECT name FROM :"schema".subscriptions WHERE name = $1::text AND lanes_wanted = $2::integer FOR NO KEY UPDATE
), l AS MATERIALIZED (
    SELECT l.* FROM s, :"schema".lanes AS l WHERE l.subscription = s.name ORDER BY l.lane FOR UPDATE OF l
)
SELECT coalesce(bool_and((owner IS NULL OR lease_until < now()) AND to_window IS NULL AND ahead = '{}') AND count(DISTINCT from_window) = 1, false)
FROM l;
