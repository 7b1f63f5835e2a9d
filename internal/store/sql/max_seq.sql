-- The highest number in the events table, 0 if it is empty, and the highest up to which lanes are settled that were copied from
-- another cluster ($1 is this one's identifier): numbers up to it were handed out there, even if no event has them.
-- Walks the index on seq of each leaf backwards, one entry each, and scans the few lanes; takes ACCESS SHARE.
SELECT (SELECT coalesce(max(seq), 0) FROM :"events_schema".:"events_table"),
       (SELECT coalesce(max(w.h), 0)
        FROM :"schema".lanes AS l
        JOIN :"schema".windows AS w ON w.id IN (l.from_window, l.to_window)
        WHERE w.run ->> 'system' <> $1::text);
