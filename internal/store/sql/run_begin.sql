-- Begins a new run on a server whose crash recovery has emptied the unlogged table. Several callers at once are safe.
-- Walks the primary key; takes ROW EXCLUSIVE on the table.
INSERT INTO :"schema".run DEFAULT VALUES ON CONFLICT DO NOTHING;
