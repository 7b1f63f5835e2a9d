package torture

// Kind is a kind of fault.
type Kind string

// The kinds of faults.
const (
	Kill       Kind = "kill"           // kill -9 of a relay, and later a new one in its place
	Freeze     Kind = "freeze"         // SIGSTOP of a relay and SIGCONT, before or after its lease is over
	Join       Kind = "join"           // one relay more: no fault
	Leave      Kind = "leave"          // SIGTERM of a relay: no fault
	Restart    Kind = "restart"        // PostgreSQL stops as pg_ctl -m immediate does it, and recovers
	Terminate  Kind = "terminate"      // pg_terminate_backend of every session
	BrokerDown Kind = "broker_restart" // the broker goes and comes again
	TopicGone  Kind = "topic"          // the broker refuses one topic for a while
	CutDB      Kind = "cut_db"         // a relay's connections to PostgreSQL are reset
	CutBroker  Kind = "cut_broker"     // a relay's connections to the broker are reset
	HoleDB     Kind = "hole_db"        // what one side sends, or both do, is held back: PostgreSQL's
	HoleBroker Kind = "hole_broker"    // the broker's
	SlowDB     Kind = "slow_db"        // one direction or both of them are slow
	SlowBroker Kind = "slow_broker"
)

// Kinds are all there are.
var Kinds = []Kind{
	Kill, Freeze, Join, Leave, Restart, Terminate, BrokerDown, TopicGone,
	CutDB, CutBroker, HoleDB, HoleBroker, SlowDB, SlowBroker,
}

// Disturbs says whether the kind is a fault, which may explain duplicates and stalls. Relays that
// come and go in good order are none.
func (k Kind) Disturbs() bool { return k != Join && k != Leave }
