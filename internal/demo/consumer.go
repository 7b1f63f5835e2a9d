package demo

import (
	"encoding/json"
)

// endType is the event type of the message that a demo sends last, when nobody else publishes any
// more: whoever has received it has received all that there was.
const endType = "End"

// consumer is the service at the other end: it "sends" a welcome mail per UserCreated, as often as
// it is told.
type consumer struct {
	ledger *ledger
	mails  map[int64]int // by user
}

// receive takes a message, and is false after the last one.
func (c *consumer) receive(eventType string, body []byte) (more bool) {
	if eventType == endType {
		return false
	}
	var p payload
	if err := json.Unmarshal(body, &p); err != nil {
		c.ledger.Unreadable()
		return true
	}
	c.ledger.Received(event{ID: p.EventID, User: p.UserID, Version: p.Version})
	if eventType == userCreated {
		c.mails[p.UserID]++
	}
	return true
}

// report adds the mails to r.
func (c *consumer) report(r *Result) {
	for _, n := range c.mails {
		r.WelcomeMails += n
		if n > 1 {
			r.UsersMailedTwice++
		}
	}
}
