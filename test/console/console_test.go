package console

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/ballast-lb/ballast/internal/fleettest"
)

const pageDir = "../../internal/daemon/console/page"

// even gives every server the same.
func even(string, int) int { return 5 }

// startEvenFleet has load balancers that report as many connections of every server, all of which are healthy.
func startEvenFleet(t *testing.T, servers map[string]int, loadBalancers ...string) *fleet {
	t.Helper()
	f := startFleet(t)
	f.join(loadBalancers...)
	f.apply(servers)
	f.live(servers, even, nil)
	return f
}

// rowOf is an expression that finds the row of a table that begins with a name.
func rowOf(table, name string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("[aria-label='%s'] tbody tr")].find((r) => r.cells[0].textContent.includes(%q))`, table, name)
}

func TestADrainIsSeenOnThePageWithinTwoSeconds(t *testing.T) {
	long(t)
	servers := map[string]int{"web": 6, "mail": 2}
	f := startEvenFleet(t, servers, "lb1", "lb2")
	b := open(t, f.page, "light", 1280, 900)
	b.is(rowOf("Servers", "web-1"))
	b.is(rowOf("Nodes", "lb2"))
	if ask[bool](b, "!!"+rowOf("Servers that leave", "web-3")) {
		t.Fatal("it leaves before it is drained")
	}
	fleettest.Require(t, f.ctl("server", "drain", "web", "web-3", "--deadline", "5m"))
	b.is(rowOf("Servers that leave", "web-3"))
	b.is(rowOf("Servers that leave", "web-3") + `.textContent.includes("in 4 min")`)
	b.is(`document.querySelector(".changes")?.textContent.includes("alice")`)
	fleettest.Require(t, f.ctl("server", "undrain", "web", "web-3"))
	b.is("!" + rowOf("Servers that leave", "web-3"))
	f.lbs[1].Stream.CloseRequest() // lb2 goes
	b.is(`document.querySelector("h1")?.textContent.includes("load balancer lb2: lost")`)
	b.is(`document.title.startsWith("✕")`)
	b.clean()
}

func TestThePageTellsThatItHearsNothingAndGoesOn(t *testing.T) {
	long(t)
	f := startFleet(t)
	b := open(t, f.page, "dark", 1280, 900)
	b.is(`document.querySelector("h1")?.textContent.includes("No service")`)
	f.stop()
	b.is(`document.querySelector("h1")?.textContent.includes("hears nothing")`)
	f.start()
	b.is(`document.querySelector("h1")?.textContent.includes("No service")`)
}

func TestTheKeyboardReachesEverything(t *testing.T) {
	long(t)
	servers := map[string]int{"web": 60, "mail": 2}
	f := startEvenFleet(t, servers, "lb1")
	b := open(t, f.page, "light", 1280, 900)
	b.is(rowOf("Servers", "web-1"))
	var walked []string
	reached := map[string]bool{}
	const focused = `(() => { const e = document.activeElement; return e.id || e.getAttribute("aria-label") || e.labels?.[0]?.textContent.trim() || e.textContent.trim(); })()`
	const visible = `(() => { const s = getComputedStyle(document.activeElement); return document.activeElement.matches(":focus-visible") && s.outlineStyle !== "none"; })()`
	for range 120 {
		if b.do(chromedp.KeyEvent("\t")); ask[bool](b, `document.activeElement === document.body`) {
			break // round the end
		}
		at := ask[string](b, focused)
		if walked, reached[at] = append(walked, at), true; !ask[bool](b, visible) {
			t.Errorf("%s has focus, and nothing shows it", at)
		}
	}
	for _, wanted := range []string{"To the servers", "Dark colours", "web", "Servers", "Open", "web-1", "Next", "Take a sample", "Last changes, the newest first"} {
		if !reached[wanted] {
			t.Errorf("%q is not reached: %q", wanted, walked)
		}
	}
	b.do(chromedp.Evaluate[chromedp.Void](`document.querySelector("button.link").focus()`), chromedp.KeyEvent("\r")) // mail
	b.is(`document.activeElement.id === "servers"`)
	b.is(`document.querySelector("[role=search] output").textContent.startsWith("2 of")`)
	b.do(chromedp.Evaluate[chromedp.Void](`[...document.querySelectorAll("[aria-label=Servers] button.sort")].find((x) => x.textContent.startsWith("Open")).focus()`), chromedp.KeyEvent("\r"))
	b.is(`document.querySelector("[aria-label=Servers] th[aria-sort=descending]")`)
	b.do(chromedp.Evaluate[chromedp.Void](`document.querySelector("header button").focus()`), chromedp.KeyEvent(" "))
	b.is(`document.documentElement.dataset.theme === "dark"`)
	b.clean()
}

// Promise: The page shows of a change who made it, from where, why, its whole difference and the way back, which it does not go; and takes no text for markup.
func TestThePageShowsDifferencesAndTheWayBack(t *testing.T) {
	long(t)
	servers := map[string]int{"web": 6}
	f := startEvenFleet(t, servers, "lb1")
	fleettest.Require(t, f.ctl("server", "drain", "web", "web-3", "--comment", markup))
	b := open(t, f.page, "light", 1280, 900)
	const newest = `document.querySelector(".changes > li")`
	b.is(newest + `?.querySelector("q")?.textContent === ` + fmt.Sprintf("%q", markup))
	b.is(newest + `.textContent.includes("from 127.0.0.1")`)
	b.is(`document.querySelector(".changes > li:last-child").textContent.includes("No way back")`)
	b.do(chromedp.Evaluate[chromedp.Void](newest+`.querySelector("summary").focus()`), chromedp.KeyEvent("\r"))
	b.is(newest + `.querySelector("details").textContent.includes("server web-3: state active -> draining")`)
	b.is(newest + `.querySelector("details").textContent.includes("server web-3: state draining -> active")`)
	back := ask[string](b, newest+`.querySelector("code").textContent`)
	fleettest.Require(t, f.ctl("server", "weight", "web", "web-1", "7"))
	b.is(`document.querySelectorAll(".changes > li")[1].querySelector("details")?.textContent.includes("server web-1: weight 7 -> 1")`) // what it would undo now
	fleettest.Require(t, f.ctl(append(strings.Fields(strings.TrimPrefix(back, "ballast ctl ")), "--yes")...))
	b.is(rowOf("Servers", "web-3") + `.textContent.includes("active")`)
	b.clean()
}

// Promise: The page says why a server gets what it gets, from the keyboard, and follows it.
func TestThePageSaysWhyAServerGetsWhatItGets(t *testing.T) {
	long(t)
	servers := map[string]int{"web": 6}
	f := startEvenFleet(t, servers, "lb1", "lb2")
	b := open(t, f.page, "light", 1280, 900)
	b.is(rowOf("Servers", "web-3"))
	b.do(chromedp.Evaluate[chromedp.Void](rowOf("Servers", "web-3")+`.querySelector("button").focus()`), chromedp.KeyEvent("\r"))
	const why = `document.querySelector(".why")`
	b.is(why + `?.textContent.includes("1 of 6: about 16.7 % of new connections")`)
	b.is(`document.activeElement.textContent.startsWith("Why web-3")`)
	fleettest.Require(t, f.ctl("server", "drain", "web", "web-3"))
	b.is(why + `.textContent.includes("draining: gets no new connections")`)
	f.lbs[1].Stream.CloseRequest() // lb2 goes
	b.is(why + `.textContent.includes("older figures: lb2")`)
	b.do(chromedp.Evaluate[chromedp.Void](why+`.querySelector("button").focus()`), chromedp.KeyEvent("\r"))
	b.is("!" + why)
	b.clean()
}

// Promise: The page says whose packets are most when it is asked to, of whom that is not known, and why.
func TestThePageTakesASampleWhenAsked(t *testing.T) {
	long(t)
	servers := map[string]int{"web": 2}
	f := startEvenFleet(t, servers, "lb1", "lb2")
	b := open(t, f.page, "light", 1280, 900)
	b.is(rowOf("Servers", "web-1"))
	b.is(`document.body.textContent.includes("Not known because nobody has asked")`)
	b.do(chromedp.Evaluate[chromedp.Void](`[...document.querySelectorAll("button")].find((x) => x.textContent === "Take a sample").focus()`), chromedp.KeyEvent("\r"))
	b.is(rowOf("Packets by client prefix", "203.0.113.0/24") + `?.textContent.includes("60.0 % ± 2.0 %")`)
	b.is(rowOf("Packets by client prefix", "onerror"))
	b.is(`document.body.textContent.includes("Of lb2 not known because a trace is running already")`)
	b.clean()
}

// axe-core finds what a screen reader or weak eyes would stumble over.
func TestThePageIsAccessible(t *testing.T) {
	long(t)
	install(t)
	axe, err := os.ReadFile(filepath.Join(pageDir, "node_modules/axe-core/axe.min.js"))
	fleettest.Require(t, err)
	servers := map[string]int{"web": 60, "mail": 2}
	f := startFleet(t)
	f.join("lb1", "lb2")
	f.apply(servers)
	f.live(servers, even, map[string]string{"web-2": "connect: refused"})
	fleettest.Require(t, f.ctl("server", "drain", "mail", "mail-2"))
	for _, scheme := range []string{"light", "dark"} {
		b := open(t, f.page, scheme, 1280, 900)
		b.is(rowOf("Servers", "web-1"))
		b.is(`document.querySelector("h1")?.textContent.includes("web-2")`)
		b.do(chromedp.Evaluate[chromedp.Void](rowOf("Servers", "web-2") + `.querySelector("button").click()`))
		b.do(chromedp.Evaluate[chromedp.Void](`[...document.querySelectorAll("button")].find((x) => x.textContent === "Take a sample").click()`))
		b.do(chromedp.Evaluate[chromedp.Void](`document.querySelector(".changes summary").click()`))
		b.is(`document.querySelector(".why dl") && document.querySelector(".changes code") && document.querySelector("[aria-label='Packets by server']")`)
		b.do(chromedp.Evaluate[chromedp.Void](string(axe)))
		found := ask[json.RawMessage](b, `axe.run().then((r) => r.violations.map((v) => ({id: v.id, help: v.help, nodes: v.nodes.map((n) => n.html).slice(0, 3)})))`,
			chromedp.EvalAwaitPromise)
		if string(found) != "[]" {
			t.Errorf("%s: %s", scheme, found)
		}
		b.clean()
	}
}

// install fetches what the page is built with, as package-lock.json pins it.
func install(t *testing.T) {
	t.Helper()
	npm := exec.Command("npm", "ci", "--no-audit", "--no-fund")
	npm.Dir = pageDir
	if out, err := npm.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func TestTheBuildMakesWhatIsCheckedIn(t *testing.T) {
	long(t)
	install(t)
	dir := t.TempDir()
	fleettest.Require(t, os.CopyFS(dir, os.DirFS(pageDir)))
	build := exec.Command("npm", "run", "build")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	diff := exec.Command("diff", "-r", filepath.Join(dir, "dist"), filepath.Join(pageDir, "dist"))
	if out, err := diff.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// A fleet of a thousand servers, all of which change every second.
func TestThousandServersStayUsable(t *testing.T) {
	long(t)
	servers := map[string]int{"web": 900, "mail": 100}
	f := startFleet(t)
	f.join("lb1", "lb2", "lb3")
	f.apply(servers)
	f.live(servers, func(service string, id int) int { return 5 + id%7 + int(time.Now().Unix()%5) }, nil)
	b := open(t, f.page, "light", 1280, 900)
	b.is(`document.querySelector("dl")?.textContent.includes("1,000 of 1,000")`)
	const seconds = 10
	before, busy := b.bytes(), b.busy()
	time.Sleep(seconds * time.Second) // what is measured
	bytes, work := float64(b.bytes()-before)/seconds, (b.busy()-busy)/seconds
	t.Logf("1,000 servers: %.0f bytes/s, %.0f ms of the browser's main thread a second", bytes, 1000*work)
	if bytes > 50_000 || work > 0.5 {
		t.Error("that is too much")
	}
	b.clean()
}
