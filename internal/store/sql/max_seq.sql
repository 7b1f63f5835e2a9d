-- The highest number in the events table, 0 if it is empty.
-- Walks the index on seq of each leaf backwards, one entry each; takes ACCESS SHARE.
SELECT coalesce(max(seq), 0) FROM :"events_schema".:"events_table";
