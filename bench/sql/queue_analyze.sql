-- Statistics, as autovacuum gives them after a while.
ANALYZE :"table";
