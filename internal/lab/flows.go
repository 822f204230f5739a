// Traffic that several scenarios share.
package lab

import (
	"time"

	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
)

// downloads are connections that stay busy until the traffic ends, at a limited rate.
func downloads(target string, count int) traffic.Flow {
	return traffic.Flow{
		Name: "download", Target: target, Count: count, Concurrent: count, PerSecond: 100, Repeat: true,
		Requests: []traffic.Request{{Path: pathSlow(128 << 10), Bytes: 256 << 10}},
	}
}

// shorts are connections of one small request each, until the traffic ends.
func shorts(target string, perSecond float64) traffic.Flow {
	return traffic.Flow{
		Name: "short", Target: target, Concurrent: 200, PerSecond: perSecond,
		Requests: []traffic.Request{{Path: pathBlob, Bytes: 4000}},
	}
}

// restless are connections of about a second each: how many a server has changes all the time.
func restless(target string, perSecond float64) traffic.Flow {
	return traffic.Flow{
		Name: "restless", Target: target, Concurrent: 200, PerSecond: perSecond,
		Requests: []traffic.Request{{Path: pathSlow(200 << 10), Bytes: 200 << 10}},
	}
}

// browsers are connections with pauses of a second and requests in both directions.
func browsers(target string, count int) traffic.Flow {
	return traffic.Flow{
		Name: "browse", Target: target, Count: count, Concurrent: count, PerSecond: 50, Repeat: true,
		Requests: []traffic.Request{
			{Path: pathName}, {Path: pathBlob, Bytes: 100_000, Pause: time.Second},
			{Path: pathUpload + "browse", Bytes: 100_000, Upload: true, Pause: time.Second},
		},
	}
}

// exchanges are a fixed number of connections, each with a download and an upload as fast as they go.
func exchanges(target string, count int, bytes int64) traffic.Flow {
	return traffic.Flow{
		Name: "exchange", Target: target, Count: count, Concurrent: 20,
		Requests: []traffic.Request{
			{Path: pathBlob, Bytes: bytes}, {Path: pathUpload + "exchange", Bytes: bytes, Upload: true},
		},
	}
}

// busy waits until as many connections were attempted since the call.
func (t *trial) busy(running *load, connections int) error {
	before := running.now().Attempted
	return t.until(running, 30*time.Second, "more connections were attempted",
		func(p traffic.Progress) bool { return p.Attempted >= before+connections })
}

// steady starts downloads, browsers and shorts and waits until they are under way.
func (t *trial) steady() (*load, error) {
	running, err := t.generate(downloads(t.target(), 30), browsers(t.target(), 20), shorts(t.target(), 40))
	if err != nil {
		return nil, err
	}
	return running, t.busy(running, 100)
}

// step is one event of a series, followed by as many connections before the next.
type step struct {
	what string
	do   func() error
}

// series does events one after the other; between them clients open some connections.
func (t *trial) series(running *load, steps ...step) error {
	const between = 40
	for _, one := range steps {
		if err := t.event(one.what, one.do); err != nil {
			return err
		}
		if err := t.busy(running, between); err != nil {
			return err
		}
	}
	return nil
}
