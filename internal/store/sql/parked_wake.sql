-- Makes the first waiting event of each key ($3, $4) due, once those before it are gone.
-- Walks parked_key_idx once per key; locks the rows.
UPDATE :"schema".parked AS k
SET next_attempt = now()
FROM unnest($3::text[], $4::text[]) AS key (aggregate_type, aggregate_id)
WHERE k.id = (
    SELECT min(w.id)
    FROM :"schema".parked AS w
    WHERE w.subscription = $1::text AND w.lane = $2::integer AND w.state <> 'dead'
      AND hashtextextended(w.aggregate_id, hashtextextended(w.aggregate_type, 0))
        = hashtextextended(key.aggregate_id, hashtextextended(key.aggregate_type, 0))
      AND w.aggregate_type = key.aggregate_type AND w.aggregate_id = key.aggregate_id)
  AND k.next_attempt IS NULL;
