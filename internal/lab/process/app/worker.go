package app

import (
	"context"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Implementation constants: the turns of requests that share a server. Sleeping is less exact than burning.
const (
	burningTurn  = 500 * time.Microsecond
	sleepingTurn = 4 * time.Millisecond
)

// job is the work of one request.
type job struct {
	left time.Duration
	done chan struct{}
	gone context.Context // ended: nobody waits for it
}

// worker is the one processor of a server.
type worker struct {
	spend func(time.Duration) // does work of that length
	turn  time.Duration       // that one job gets before the next; 0: all it needs

	mutex sync.Mutex
	jobs  []*job
	added chan struct{}

	speed atomic.Uint64 // the bits of a float64
	free  time.Time     // sleeping: when the work so far is done
}

func newWorker(options *Options) *worker {
	w := &worker{added: make(chan struct{}, 1), spend: burn}
	w.setSpeed(options.Speed)
	turn := burningTurn
	if options.Sleep {
		w.spend, turn = w.sleep, sleepingTurn
	}
	if options.Shared {
		w.turn = turn
	}
	return w
}

func (w *worker) setSpeed(speed float64) { w.speed.Store(math.Float64bits(speed)) }

// do waits until the work is done, or nobody waits for it any more.
func (w *worker) do(ctx context.Context, cost time.Duration) error {
	one := &job{left: cost, done: make(chan struct{}), gone: ctx}
	w.mutex.Lock()
	w.jobs = append(w.jobs, one)
	w.mutex.Unlock()
	select {
	case w.added <- struct{}{}:
	default: // the worker knows already that there is something
	}
	select {
	case <-one.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run works until ctx ends. It keeps its thread: burning is measured by the thread's own clock.
func (w *worker) run(ctx context.Context) {
	runtime.LockOSThread()
	for {
		one := w.first()
		if one == nil {
			select {
			case <-w.added:
			case <-ctx.Done():
				return
			}
			w.free = time.Now()
			continue
		}
		turn := one.left
		if w.turn != 0 {
			turn = min(turn, w.turn)
		}
		if one.gone.Err() == nil {
			w.spend(turn)
			one.left -= turn
		} else {
			one.left = 0
		}
		if one.left > 0 {
			w.mutex.Lock()
			w.jobs = append(w.jobs, one)
			w.mutex.Unlock()
		} else {
			close(one.done)
		}
	}
}

// first takes the job whose turn it is; nil: there is none.
func (w *worker) first() *job {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if len(w.jobs) == 0 {
		return nil
	}
	one := w.jobs[0]
	w.jobs = w.jobs[1:]
	return one
}

// sleep passes the time that work takes at the worker's speed. A sleep that lasted too long shortens the next.
func (w *worker) sleep(work time.Duration) {
	w.free = w.free.Add(time.Duration(float64(work) / math.Float64frombits(w.speed.Load())))
	time.Sleep(time.Until(w.free))
}

// burn uses CPU time of the calling thread.
func burn(work time.Duration) {
	end := threadTime() + work
	for number := uint64(1); threadTime() < end; {
		for range 2000 {
			number = number*6364136223846793005 + 1442695040888963407
		}
		runtime.KeepAlive(number)
	}
}

func threadTime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		panic("read the thread's CPU clock: " + err.Error())
	}
	return time.Duration(now.Nano())
}
