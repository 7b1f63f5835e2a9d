-- What is settled of a lane. Walks the primary keys; takes ACCESS SHARE.
SELECT s.lanes, l.p, l.ahead, l.catch_up,
       f.id, f.snapshot::text, f.h, f.next_xid::text, f.bounds, f.floor, f.run,
       t.id, t.snapshot::text, t.h, t.next_xid::text, t.bounds, t.floor, t.run
FROM :"schema".lanes AS l
JOIN :"schema".subscriptions AS s ON s.name = l.subscription
JOIN :"schema".windows AS f ON f.id = l.from_window
LEFT JOIN :"schema".windows AS t ON t.id = l.to_window
WHERE l.subscription = $1::text
  AND l.lane = $2::integer;
