// Traffic that several scenarios share.
package scenario

import (
	"time"

	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

const holdMax = 30 * time.Second // until connections that are to stay have servers

// Downloads are connections that stay busy until the traffic ends, at a limited rate.
func Downloads(target string, count int) traffic.Flow {
	return traffic.Flow{
		Name: "download", Target: target, Count: count, Concurrent: count, PerSecond: 100, Repeat: true,
		Requests: []traffic.Request{{Path: world.PathSlow(128 << 10), Bytes: 256 << 10}},
	}
}

// Shorts are connections of one small request each, until the traffic ends.
func Shorts(target string, perSecond float64) traffic.Flow {
	return traffic.Flow{
		Name: "short", Target: target, Concurrent: 200, PerSecond: perSecond,
		Requests: []traffic.Request{{Path: world.PathBlob, Bytes: 4000}},
	}
}

// ShortLived are connections of about a second each: how many a server has changes all the time.
func ShortLived(target string, perSecond float64) traffic.Flow {
	return traffic.Flow{
		Name: "restless", Target: target, Concurrent: 200, PerSecond: perSecond,
		Requests: []traffic.Request{{Path: world.PathSlow(200 << 10), Bytes: 200 << 10}},
	}
}

// Browsers are connections with pauses of a second and requests in both directions.
func Browsers(target string, count int) traffic.Flow {
	return traffic.Flow{
		Name: "browse", Target: target, Count: count, Concurrent: count, PerSecond: 50, Repeat: true,
		Requests: []traffic.Request{
			{Path: world.PathName}, {Path: world.PathBlob, Bytes: 100_000, Pause: time.Second},
			{Path: world.PathUpload + "browse", Bytes: 100_000, Upload: true, Pause: time.Second},
		},
	}
}

// Exchanges are a fixed number of connections, each with a download and an upload as fast as they go.
func Exchanges(target string, count int, bytes int64) traffic.Flow {
	return traffic.Flow{
		Name: "exchange", Target: target, Count: count, Concurrent: 20,
		Requests: []traffic.Request{
			{Path: world.PathBlob, Bytes: bytes}, {Path: world.PathUpload + "exchange", Bytes: bytes, Upload: true},
		},
	}
}

// Steady starts downloads, browsers and shorts and waits until they are under way.
func Steady(t *world.Trial) *world.Load {
	running := t.Traffic.Generate(Downloads(t.Fleet.Target(), 30), Browsers(t.Fleet.Target(), 20), Shorts(t.Fleet.Target(), 40))
	t.Traffic.Busy(running, 100)
	return running
}

// Hold starts flows whose connections stay until they are to end, and waits until all of them have a server. what is in words what it waits for.
func Hold(t *world.Trial, what string, flows ...traffic.Flow) *world.Load {
	count := 0
	for i := range flows {
		count += flows[i].Count
	}
	held := t.Traffic.Generate(flows...)
	t.Traffic.Until(held, holdMax, what, func(p traffic.Progress) bool { return p.Served() == count })
	return held
}

// Changes are those of pool, keys and load balancers that several scenarios play, with two load balancers and six servers.
func Changes(t *world.Trial) []world.Step {
	return []world.Step{
		{What: "add servers s5 and s6", Do: func() { t.Pool.AddServer(5); t.Pool.AddServer(6); t.Rollout.Apply() }},
		{What: "drain servers s1 and s2", Do: func() { t.Pool.Drain(1); t.Pool.Drain(2); t.Rollout.Apply() }},
		{What: "kill load balancer lb1", Do: func() { t.Failures.CrashLB(1) }},
		{What: "add the next key", Do: func() { t.Pool.AddKey(2); t.Rollout.Apply() }},
		{What: "lb1 returns", Do: func() { t.Failures.ReturnLB(1) }},
		{What: "use the next key", Do: func() { t.Fleet.Keys.Current = 2; t.Rollout.Apply() }},
		{What: "remove servers s1 and s2", Do: func() { t.Pool.RemoveServer(1); t.Pool.RemoveServer(2); t.Rollout.Apply() }},
		{What: "kill load balancer lb2", Do: func() { t.Failures.CrashLB(2) }},
		{What: "drain server s3", Do: func() { t.Pool.Drain(3); t.Rollout.Apply() }},
		{What: "lb2 returns", Do: func() { t.Failures.ReturnLB(2) }},
	}
}
