package console

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/ballast-lb/ballast/internal/fleettest"
)

// browser is a page in headless Chromium, and what it complains of.
type browser struct {
	t   *testing.T
	ctx context.Context

	mutex      sync.Mutex
	complaints []string // console errors, exceptions, requests to elsewhere
	received   int64    // bytes
}

// open shows a page of the given width, light or dark.
func open(t *testing.T, address, scheme string, width, height int64) *browser {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.Flag("disable-gpu", true))
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	b := &browser{t: t, ctx: ctx}
	own, err := url.Parse(address)
	fleettest.Require(t, err)
	b.do(chromedp.Navigate("about:blank")) // begins the browser
	fleettest.Require(t, chromedp.Listen(ctx, func(event any) { b.hear(event, own.Host) }))
	call(b, network.Enable, network.EnableParams{})
	call(b, log.Enable, cdp.Empty{})
	call(b, performance.Enable, performance.EnableParams{})
	call(b, runtime.Enable, cdp.Empty{})
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	b.do(chromedp.EmulateViewport(width, height), chromedp.Navigate(address))
	return b
}

func call[P, R any](b *browser, command cdp.Command[P, R], with P) R {
	b.t.Helper()
	answer, err := chromedp.Call(b.ctx, command, with)
	fleettest.Require(b.t, err)
	return answer
}

func (b *browser) hear(event any, host string) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	switch e := event.(type) {
	case *log.EventEntryAdded:
		b.complaints = append(b.complaints, fmt.Sprintf("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL))
	case *runtime.EventConsoleAPICalled:
		b.complaints = append(b.complaints, fmt.Sprintf("console.%s", e.Type))
	case *runtime.EventExceptionThrown:
		b.complaints = append(b.complaints, "exception: "+e.ExceptionDetails.Text)
	case *network.EventRequestWillBeSent:
		if to, err := url.Parse(e.Request.URL); err != nil || to.Host != host {
			b.complaints = append(b.complaints, "asks "+e.Request.URL)
		}
	case *network.EventDataReceived:
		b.received += e.DataLength
	}
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	fleettest.Require(b.t, chromedp.Do(b.ctx, steps...))
}

// ask evaluates an expression on the page.
func ask[T any](b *browser, expression string, options ...chromedp.EvaluateOption) T {
	b.t.Helper()
	answer, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, options...))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return answer
}

// is waits until an expression is true on the page.
func (b *browser) is(expression string) {
	b.t.Helper()
	fleettest.Await(b.t, expression, func() bool { return ask[bool](b, "!!("+expression+")") })
}

// bytes are those that the page has received.
func (b *browser) bytes() int64 {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.received
}

// busy is for how many seconds the main thread of the page has worked.
func (b *browser) busy() float64 {
	for _, m := range call(b, performance.GetMetrics, cdp.Empty{}).Metrics {
		if m.Name == "TaskDuration" {
			return m.Value
		}
	}
	b.t.Fatal("no TaskDuration")
	return 0
}

func (b *browser) clean() {
	b.t.Helper()
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if len(b.complaints) > 0 {
		b.t.Errorf("the page complains:\n%s", strings.Join(b.complaints, "\n"))
	}
}

func (b *browser) shoot(path string) {
	b.t.Helper()
	picture, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	fleettest.Require(b.t, err)
	fleettest.Require(b.t, os.WriteFile(path, picture, 0o644))
}

func TestScreenshots(t *testing.T) {
	long(t)
	dir := os.Getenv("BALLAST_SCREENSHOTS")
	if dir == "" {
		t.Skip("makes docs/images: BALLAST_SCREENSHOTS=$PWD/docs/images")
	}
	began := time.Now()
	servers := map[string]int{"web": 24, "mail": 6, "dns": 8}
	f := startFleet(t)
	f.join("lb1", "lb2", "lb3")
	f.apply(servers)
	f.joinAgents(servers)
	var drained atomic.Bool
	f.live(servers, func(service string, id int) int {
		if drained.Load() && (service == "mail" && id == 2 || service == "web" && id == 7) {
			return 0
		}
		return 3 + (id*7+len(service)*5)%9
	}, map[string]string{"web-7": "connect: connection refused"})
	time.Sleep(time.Until(began.Add(15 * time.Second)))
	drained.Store(true)
	fleettest.Require(t, f.ctl("server", "drain", "mail", "mail-2", "--deadline", "10m"))
	for _, scheme := range []string{"light", "dark"} {
		b := open(t, f.page, scheme, 1280, 1000)
		b.is(`document.querySelector("h1")?.textContent.includes("(web-7) fails health checks")`)
		b.is(`document.querySelectorAll("canvas").length >= 5`)
		b.is(`document.querySelector(".figures")?.textContent.includes("Load balancers ready3 of 3")`)
		time.Sleep(time.Until(began.Add(40 * time.Second))) // until charts have something to show
		b.shoot(fmt.Sprintf("%s/console-%s.png", dir, scheme))
		b.clean()
	}
}
