package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
)

// Result is what a demo ends with. All of it is counted from the commits and the arrivals.
type Result struct {
	Mode   string `json:"mode"`   // "commitrelay" or "naive"
	Relays int    `json:"relays"` // relays that ran, or copies of the poller

	Committed       int `json:"committed"`        // events whose transaction committed
	RolledBack      int `json:"rolled_back"`      // events whose transaction did not
	Delivered       int `json:"delivered"`        // messages that reached the consumer, copies included
	Distinct        int `json:"distinct"`         // different events among them
	Lost            int `json:"lost"`             // committed, and not arrived when the demo ended
	Invented        int `json:"invented"`         // arrived, and not committed, or not as they arrived
	Duplicates      int `json:"duplicates"`       // copies beyond the first
	OrderViolations int `json:"order_violations"` // events that first arrived after a later one of their user

	// Suppressed counts copies that the broker took for what they were and did not store, so that
	// the consumer did not see them. NATS JetStream does so within 100 ms; RabbitMQ never.
	Suppressed int `json:"duplicates_suppressed"`

	WelcomeMails     int `json:"welcome_mails"`      // "sent" by the consumer
	UsersMailedTwice int `json:"users_mailed_twice"` // users who got more than one

	LoadSeconds     float64 `json:"load_seconds"`      // how long the writers wrote
	EventsPerSecond float64 `json:"events_per_second"` // events from the start of the load to the last arrival
	P50MS           float64 `json:"p50_ms"`            // from COMMIT returning to the first arrival
	P99MS           float64 `json:"p99_ms"`
}

// Err is an error if something was lost, invented or out of order. Duplicates are no error:
// at least once is the promise.
func (r Result) Err() error {
	if r.Lost == 0 && r.Invented == 0 && r.OrderViolations == 0 {
		return nil
	}
	return fmt.Errorf("%d lost, %d invented, %d out of order", r.Lost, r.Invented, r.OrderViolations)
}

// WriteJSON writes r as one JSON object, on one line.
func (r Result) WriteJSON(w io.Writer) error {
	for _, f := range []*float64{&r.LoadSeconds, &r.EventsPerSecond, &r.P50MS, &r.P99MS} {
		*f = math.Round(*f*1000) / 1000
	}
	return json.NewEncoder(w).Encode(r)
}

// WriteTable writes r for people.
func (r Result) WriteTable(w io.Writer) error {
	relays := "relays"
	if r.Mode == modeNaive {
		relays = "pollers"
	}
	var b strings.Builder
	row := func(name, value, meaning string) {
		b.WriteString(strings.TrimRight(fmt.Sprintf("%-18s%15s  %s", name, value, meaning), " ") + "\n")
	}
	count := func(name string, n int, meaning string) { row(name, thousands(n), meaning) }
	count("committed", r.Committed, fmt.Sprintf("events in %.1f s; %s more rolled back", r.LoadSeconds, thousands(r.RolledBack)))
	count("delivered", r.Delivered, "messages at the consumer")
	count("distinct", r.Distinct, "different events among them")
	count("lost", r.Lost, "committed, not delivered")
	count("invented", r.Invented, "delivered, not committed")
	count("duplicates", r.Duplicates, "copies beyond the first")
	if r.Suppressed > 0 {
		count("suppressed", r.Suppressed, "further copies that the broker recognised")
	}
	count("order violations", r.OrderViolations, "delivered after a later event of the same user")
	count("welcome mails", r.WelcomeMails, fmt.Sprintf("%s users got more than one", thousands(r.UsersMailedTwice)))
	count(relays, r.Relays, "")
	row("events/s", thousands(int(math.Round(r.EventsPerSecond))), "from the first transaction to the last arrival")
	row("p50 / p99 ms", fmt.Sprintf("%s / %s", decimals(r.P50MS), decimals(r.P99MS)), "from COMMIT returning to the consumer's receipt")
	_, err := io.WriteString(w, b.String())
	return err
}

// decimals shows what a person can use: 0.42, 3.1, 512.
func decimals(f float64) string {
	switch {
	case f < 1:
		return fmt.Sprintf("%.2f", f)
	case f < 100:
		return fmt.Sprintf("%.1f", f)
	}
	return thousands(int(math.Round(f)))
}

// thousands groups digits: 12,345.
func thousands(n int) string {
	s := fmt.Sprint(n)
	var b strings.Builder
	for i, c := range s {
		if i > 0 && (len(s)-i)%3 == 0 && s[i-1] != '-' {
			b.WriteByte(',')
		}
		b.WriteRune(c)
	}
	return b.String()
}
