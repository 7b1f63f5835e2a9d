-- Removes a subscription with its lanes, their positions and its parked events. Walks the primary key, and those of what
-- refers to it; locks the rows.
DELETE FROM :"schema".subscriptions WHERE name = $1::text;
