-- Removes positions that no lane refers to and that no relay can be about to use: left behind by relays that died.
-- Scans windows, which are few; locks the rows it removes.
DELETE FROM :"schema".windows AS w
WHERE w.id <> 0
  AND w.created_at < now() - interval '1 hour'
  AND NOT EXISTS (SELECT FROM :"schema".lanes AS l WHERE w.id IN (l.from_window, l.to_window));
