package flowlog

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/linux/connections"
)

func newLog(t *testing.T, path string) (*Log, *bytes.Buffer) {
	t.Helper()
	var said bytes.Buffer
	l, err := Open(path, "lb1", slog.New(slog.NewTextHandler(&said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return l, &said
}

func endedConnection(port uint16) *connections.Connection {
	return &connections.Connection{Client: netip.AddrPortFrom(netip.MustParseAddr("203.0.113.7"), port), Server: 1, First: time.Minute, Last: 10 * time.Second, Packets: 5, Bytes: 300}
}

func lines(t *testing.T, path string) (found []api.EndedConnection) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var c api.EndedConnection
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		found = append(found, c)
	}
	return found
}

func TestAConnectionThatEndedIsALineOfTheLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flows.json")
	l, _ := newLog(t, path)
	before := time.Now()
	l.Add("web", "s1", endedConnection(1), connections.EndedByRST, true)
	l.Close()
	l.Run()
	got := lines(t, path)
	if len(got) != 1 {
		t.Fatalf("lines: %v", got)
	}
	if first, last := before.Sub(got[0].First), before.Sub(got[0].Last); first < time.Minute-time.Second || first > time.Minute+time.Millisecond || first-last != 50*time.Second {
		t.Errorf("first %s ago, last %s ago", first, last)
	}
	got[0].First, got[0].Last = time.Time{}, time.Time{}
	if want := (api.EndedConnection{Node: "lb1", Service: "web", Server: "s1", ID: 1, Client: endedConnection(1).Client, Duration: 50, Packets: 5, Bytes: 300,
		Reason: "rst", Reclaimed: true}); got[0] != want {
		t.Errorf("logged %+v, want %+v", got[0], want)
	}
}

func TestNobodyWaitsForTheLogAndDropsAreCounted(t *testing.T) {
	l, _ := newLog(t, filepath.Join(t.TempDir(), "flows.json"))
	const more = 3
	for range queueSize + more { // nobody writes
		l.Add("web", "s1", endedConnection(1), connections.EndedIdle, false)
	}
	if dropped := l.dropped[dropQueue].Load(); dropped != more {
		t.Errorf("dropped %d, not %d", dropped, more)
	}
	l.Close()
	if l.Run(); l.written.Load() != queueSize {
		t.Errorf("written %d", l.written.Load())
	}
	var none *Log
	none.Add("web", "s1", endedConnection(1), connections.EndedIdle, false) // nobody keeps one
}

func TestWhoTellsALogThatHasEndedIsHeardByNobody(t *testing.T) {
	l, _ := newLog(t, filepath.Join(t.TempDir(), "flows.json"))
	l.Add("web", "s1", endedConnection(1), connections.EndedIdle, false)
	l.Close()
	l.Add("web", "s1", endedConnection(2), connections.EndedIdle, false)
	l.Run()
	l.Add("web", "s1", endedConnection(3), connections.EndedIdle, false)
	if l.written.Load() != 1 || l.dropped[dropQueue].Load() != 2 {
		t.Errorf("written %d, dropped %d", l.written.Load(), l.dropped[dropQueue].Load())
	}
}

func TestTheLogGoesOnInANewFileWhenTheOldOneWasRenamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flows.json")
	l, said := newLog(t, path)
	one := func(port uint16) {
		l.write(&record{*endedConnection(port), time.Now(), "web", "s1", connections.EndedIdle, false})
		l.flush()
		l.follow()
	}
	one(1)
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	one(2) // until the rename is seen, it belongs to the old file
	one(3)
	if old, fresh := lines(t, path+".1"), lines(t, path); len(old) != 2 || len(fresh) != 1 || fresh[0].Client.Port() != 3 {
		t.Errorf("old %v, new %v", old, fresh)
	}
	if l.written.Load() != 3 || said.Len() > 0 {
		t.Errorf("written %d, said %s", l.written.Load(), said)
	}
}

func TestALogThatCannotBeWrittenIsSaidOnceAndGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flows.json")
	l, said := newLog(t, path)
	good := l.file.File
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	one := func(port uint16) {
		l.write(&record{*endedConnection(port), time.Now(), "web", "s1", connections.EndedIdle, false})
		l.flush()
	}
	l.file.File = full
	one(1)
	one(2)
	l.file.File = good
	one(3)
	if got := lines(t, path); len(got) != 1 || l.written.Load() != 1 || l.dropped[dropFile].Load() != 2 {
		t.Errorf("lines %v, written %d, dropped %d", got, l.written.Load(), l.dropped[dropFile].Load())
	}
	if text := said.String(); strings.Count(text, "cannot be written") != 1 || strings.Count(text, "is written again") != 1 {
		t.Errorf("said %s", text)
	}
	if _, err := Open(filepath.Join(path, "below"), "lb1", nil); err == nil || !strings.Contains(err.Error(), "name a file") {
		t.Error(err)
	}
}

func TestALineThatWasWrittenInPartHasALineOfItsOwn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flows.json")
	l, _ := newLog(t, path)
	const torn = `{"node":`
	if _, err := l.file.Write([]byte(torn)); err != nil { // and then the disk was full
		t.Fatal(err)
	}
	l.fail(os.ErrInvalid)
	l.write(&record{*endedConnection(1), time.Now(), "web", "s1", connections.EndedIdle, false})
	l.flush()
	text, err := os.ReadFile(path)
	if rest, found := strings.CutPrefix(string(text), torn+"\n{"); err != nil || !found || strings.Count(rest, "\n") != 1 {
		t.Errorf("%v: %q", err, text)
	}
}
