-- Every subscription that was ever configured. Takes ACCESS SHARE.
SELECT name,
       sink,
       topic,
       on_dead,
       aggregate_types,
       event_types,
       coalesce(nullif(lanes_wanted, lanes), 0),
       paused
FROM :"schema".subscriptions
ORDER BY name;
