-- Statistics of all tables, as autovacuum gives them after a while.
ANALYZE;
