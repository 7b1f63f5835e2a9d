SELECT version
FROM :"schema".installation;
