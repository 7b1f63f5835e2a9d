-- Puts events of a lane that were being sent ($3) back: $4 parked or dead, $5 attempts, $6 seconds until the next one (NULL: it
-- waits behind another), $7 reason (NULL: it was not tried).
-- Walks the primary key; locks the rows.
UPDATE :"schema".parked AS k
SET state = g.state,
    attempts = g.attempts,
    next_attempt = now() + make_interval(secs => g.delay),
    first_error = coalesce(k.first_error, g.error),
    last_error = coalesce(g.error, k.last_error),
    first_failed_at = coalesce(k.first_failed_at, CASE WHEN g.error IS NOT NULL THEN now() END),
    last_failed_at = CASE WHEN g.error IS NOT NULL THEN now() ELSE k.last_failed_at END
FROM unnest($3::bigint[], $4::text[], $5::integer[], $6::float8[], $7::text[]) AS g (id, state, attempts, delay, error)
WHERE k.id = g.id AND k.subscription = $1::text AND k.lane = $2::integer;
