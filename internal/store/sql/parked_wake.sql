-- Makes the first waiting event of a key due, once those before it are gone.
-- Walks parked_key_idx; locks the row.
UPDATE :"schema".parked
SET next_attempt = now()
WHERE id = (
    SELECT min(id)
    FROM :"schema".parked
    WHERE subscription = $1::text AND lane = $2::integer AND state <> 'dead'
      AND hashtextextended(aggregate_id, hashtextextended(aggregate_type, 0)) = hashtextextended($4::text, hashtextextended($3::text, 0))
      AND aggregate_type = $3::text AND aggregate_id = $4::text)
  AND next_attempt IS NULL;
