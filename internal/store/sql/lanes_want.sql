-- Asks for another number of lanes ($2) of a subscription ($1); the present one takes back what was asked for. Returns the
-- present number. Walks the primary key; locks the subscription's row.
UPDATE :"schema".subscriptions
SET lanes_wanted = nullif($2::integer, lanes)
WHERE name = $1::text
RETURNING lanes;
