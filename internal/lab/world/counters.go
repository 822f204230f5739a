// What daemons count, and what they keep in memory.
package world

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// Counters asks the daemons of a rollout for what they count and measure of themselves.
type Counters struct{ rollout *Rollout }

// All are the packet counters of every daemon that answers, by node and verdict; zeros are left out.
func (c *Counters) All() map[string]map[string]uint64 {
	all := map[string]map[string]uint64{}
	for _, node := range c.rollout.network.daemons() {
		counters, err := c.rollout.Client(node).Counters(c.rollout.lab.Context)
		if err != nil {
			continue // not started, or crashed on purpose
		}
		maps.DeleteFunc(counters, func(_ string, packets uint64) bool { return packets == 0 })
		all[node] = counters
	}
	return all
}

// Counted is how many packets all daemons have counted by a verdict.
func (c *Counters) Counted(verdict string) (packets uint64) {
	for _, counters := range c.All() {
		packets += counters[verdict]
	}
	return packets
}

// Verdicts adds up what several load balancers counted by their verdicts.
func (c *Counters) Verdicts(lbs ...string) (map[string]uint64, error) {
	sum := map[string]uint64{}
	for _, lb := range lbs {
		counters, err := c.rollout.Client(lb).Counters(c.rollout.lab.Context)
		if err != nil {
			return nil, err
		}
		for verdict, packets := range counters {
			sum[verdict] += packets
		}
	}
	return sum, nil
}

// Memory is in bytes.
type Memory struct {
	Own  float64 // stacks, and what a collection of garbage leaves of the heap
	Maps float64 // of BPF that the process has open, as the kernel accounts them
}

// collections are those that Memory waits for. The first may have begun before. Of what the others find in use the
// least counts: something is always in use just then.
const collections = 3

// Memory is what each daemon keeps by now. Garbage is none of it: when it is collected depends on what a daemon needed
// for a while at its start, and so on the load of the machine then. Each question makes some, so collections come.
func (c *Counters) Memory() map[*Daemon]Memory {
	all, begun := map[*Daemon]Memory{}, map[*Daemon]float64{}
	poll := func(d *Daemon) error {
		text, err := c.metrics(d)
		if err != nil {
			return err
		}
		done := sumFields(text, "go_gc_duration_seconds_count")
		if _, asked := begun[d]; !asked {
			begun[d] = done
		}
		done -= begun[d]
		own := sumFields(text, "go_gc_heap_live_bytes") + sumFields(text, "go_memstats_stack_inuse_bytes")
		if before, has := all[d]; done > 1 && (!has || own < before.Own) {
			all[d] = Memory{own, mapMemory(d)}
		}
		if done < collections {
			return fmt.Errorf("%s has done so %v times of %d", d, done, collections)
		}
		return nil
	}
	await.Until(c.rollout.lab.Context, await.Deadline, "the daemons have collected their garbage", func() error {
		var waiting []error
		for _, daemons := range []map[string]*Daemon{c.rollout.LBs, c.rollout.Agents} {
			for _, d := range daemons {
				waiting = append(waiting, poll(d))
			}
		}
		return errors.Join(waiting...)
	})
	return all
}

// metrics are what a daemon exports to Prometheus.
func (c *Counters) metrics(d *Daemon) (string, error) {
	stream, err := c.rollout.Client(d.Node).Stream(c.rollout.lab.Context, api.PathMetrics)
	if err != nil {
		return "", err
	}
	defer stream.Close()
	text, err := io.ReadAll(stream)
	return string(text), err
}

func mapMemory(d *Daemon) (bytes float64) {
	for _, file := range script.Must(filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", d.Command.Process.Pid))) {
		info, err := os.ReadFile(file)
		if !errors.Is(err, os.ErrNotExist) { // it was not a map: those stay open
			script.Check(err)
		}
		bytes += sumFields(string(info), "memlock:")
	}
	return bytes
}

// sumFields adds up the numbers behind a name, a line each.
func sumFields(text, name string) (sum float64) {
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == name {
			sum += script.Must(strconv.ParseFloat(fields[1], 64))
		}
	}
	return sum
}
