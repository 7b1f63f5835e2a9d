package torture

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/relay"
)

func TestJournalTellsWhatWasDone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, err := openJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	batch := []relay.Message{{Event: outbox.Event{ID: outbox.ID{1}}}, {Event: outbox.Event{ID: outbox.ID{2}}}}
	j.end(j.begin(batch), 2, nil)
	j.write(line{What: lineStored, Lanes: []int{3, 5}})
	j.end(j.begin(batch), 2, &relay.BatchError{Errs: []error{nil, errors.New("nack")}})
	j.end(j.begin(batch), 2, &relay.BatchError{Errs: []error{errors.New("nack"), errors.New("held back")}})
	j.end(j.begin(batch), 2, errors.New("reset"))
	j.write(line{What: lineRepeat, Call: 4, IDs: []outbox.ID{{1}}})
	j.begin(batch)
	if err := j.close(); err != nil {
		t.Fatal(err)
	}
	torn, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer torn.Close()
	if _, err := torn.WriteString(`{"at":1,"what":"beg`); err != nil {
		t.Fatal(err)
	}

	got, err := readJournal(path, r1)
	if err != nil {
		t.Fatal(err)
	}
	want := []struct {
		confirmed int
		err       string
		ended     bool
	}{{2, "", true}, {1, "nack", true}, {0, "nack", true}, {0, "reset", true}, {0, "", false}}
	if len(got.calls) != len(want) {
		t.Fatalf("%d calls, want %d", len(got.calls), len(want))
	}
	for i, w := range want {
		c := got.calls[i]
		if len(c.Confirmed) != w.confirmed || c.Err != w.err || c.End.IsZero() == w.ended || c.N != i+1 || len(c.IDs) != 2 || c.Begin.IsZero() {
			t.Errorf("call %d is %+v, want %+v", i+1, c, w)
		}
	}
	if !got.calls[1].Confirmed[outbox.ID{1}] {
		t.Errorf("call 2 confirmed %v, want the first event", got.calls[1].Confirmed)
	}
	if len(got.stores) != 1 || len(got.stores[0].Lanes) != 2 || got.stores[0].Relay != r1 {
		t.Errorf("stores %+v, want one of lanes 3 and 5", got.stores)
	}
	if len(got.repeats) != 1 || !got.repeats[0].Suppressed || got.repeats[0].Call != (CallID{r1, 4}) {
		t.Errorf("repeats %+v, want one of call 4", got.repeats)
	}
}
