-- Without CASCADE: an empty schema only.
DROP SCHEMA :"schema";
