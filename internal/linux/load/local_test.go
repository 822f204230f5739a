package load

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestStrainIsWhatIsInUseAndWhatIsWaitedFor(t *testing.T) {
	for _, c := range []struct {
		name       string
		used, wait int // ms, in half a second
		pressure   bool
		want       uint32
	}{
		{"idle", 0, 0, true, 0},
		{"half", 250, 0, true, 50},
		{"all", 500, 0, true, 100},
		{"all, and some wait", 500, 200, true, 140},
		{"all, and some always wait", 500, 500, true, 200},
		{"a kernel that does not tell who waits", 500, 500, false, 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			group := tree(t, map[string]string{"cgroup.procs": "", "cpu.max": "100000 100000"})
			write := func(used, wait int) {
				check(t, os.WriteFile(filepath.Join(group, "cpu.stat"), fmt.Appendf(nil, "usage_usec %d\n", 1000*used), 0o644))
				if c.pressure {
					check(t, os.WriteFile(filepath.Join(group, "cpu.pressure"),
						fmt.Appendf(nil, "some avg10=1.00 avg60=2.00 avg300=3.00 total=%d\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", 1000*wait), 0o644))
				}
			}
			s, now := NewStrain(group), time.Now()
			write(7000, 9000)
			if _, known, err := s.Percent(now); known || err != nil {
				t.Errorf("after one look: known %v, %v", known, err)
			}
			write(7000+c.used, 9000+c.wait)
			have, known, err := s.Percent(now.Add(500 * time.Millisecond))
			if have != c.want || !known || err != nil {
				t.Errorf("%d %%, known %v, %v; want %d", have, known, err, c.want)
			}
			for i := range 30 { // what is long ago does not count
				write(7000+c.used, 9000+c.wait)
				have, _, err = s.Percent(now.Add(time.Second + time.Duration(i)*100*time.Millisecond))
				check(t, err)
			}
			if have != 0 {
				t.Errorf("%d %% after seconds without work", have)
			}
		})
	}
}

func TestStrainThatCannotBeReadIsAnError(t *testing.T) {
	group := tree(t, map[string]string{"cgroup.procs": "", "cpu.max": "max 100000", "cpu.stat": "usage_usec 1\n", "cpu.pressure": "nothing\n"})
	s, now := NewStrain(group), time.Now()
	s.Percent(now)
	if _, known, err := s.Percent(now.Add(time.Second)); known || err == nil {
		t.Errorf("pressure that is none: known %v, %v", known, err)
	}
	if _, known, err := NewStrain(filepath.Join(group, "none")).Percent(now); known || err == nil {
		t.Errorf("no such group: known %v, %v", known, err)
	}
}

func TestACounterCountsWhatIsAcceptedAndWhatWaits(t *testing.T) {
	space := newSpace(t)
	var c *Counter
	check(t, space.Do(func() (err error) { c, err = NewCounter(); return err }))
	defer c.Close()
	if have, err := c.Count(); err != nil || len(have) != 0 {
		t.Errorf("without services: %v, %v", have, err)
	}
	listener := listen(t, space, "127.0.0.1:80", 10)
	dial(t, space, "127.0.0.1:80", 5)
	accept(t, listener, 2)
	c.SetServices([]Service{service("other", "127.0.0.2", 80), service("one", "127.0.0.1", 80, 81)})
	var have []uint32
	for end := time.Now().Add(deadline); !slices.Equal(have, []uint32{0, 5}); {
		var err error
		have, err = c.Count()
		check(t, err)
		if time.Now().After(end) {
			t.Fatalf("%d connections, want 0 and 5", have)
		}
	}
}
