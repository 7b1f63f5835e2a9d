-- Puts events that were being sent back: $2 parked or dead, $3 attempts, $4 seconds until the next one (NULL: it waits
-- behind another), $5 reason (NULL: it was not tried).
-- Walks the primary key; locks the rows.
UPDATE :"schema".parked AS k
SET state = g.state,
    attempts = g.attempts,
    next_attempt = now() + make_interval(secs => g.delay),
    first_error = coalesce(k.first_error, g.error),
    last_error = coalesce(g.error, k.last_error),
    first_failed_at = coalesce(k.first_failed_at, CASE WHEN g.error IS NOT NULL THEN now() END),
    last_failed_at = CASE WHEN g.error IS NOT NULL THEN now() ELSE k.last_failed_at END
FROM unnest($1::bigint[], $2::text[], $3::integer[], $4::float8[], $5::text[]) AS g (id, state, attempts, delay, error)
WHERE k.id = g.id;
