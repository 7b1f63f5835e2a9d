-- Where the server is, and what matters of it.
SELECT current_setting('data_directory'), current_setting('server_version'), current_setting('fsync');
