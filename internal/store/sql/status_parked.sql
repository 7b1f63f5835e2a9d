-- How many events of each lane wait for a retry, and how many were given up.
-- Reads all of parked, which is small in good times; takes ACCESS SHARE.
SELECT subscription,
       lane,
       count(*) FILTER (WHERE state <> 'dead'),
       count(*) FILTER (WHERE state = 'dead')
FROM :"schema".parked
GROUP BY subscription, lane;
