-- The version of the tables. Reads one row.
SELECT version
FROM :"schema".installation;
