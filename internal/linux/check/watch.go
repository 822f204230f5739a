package check

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/model"
)

// watch checks one target, once at a time, until ctx ends.
func (p *Prober) watch(ctx context.Context, t *tracked) {
	timer := time.NewTimer(p.wait(t, p.options.Timing.First))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.retime:
			timer.Reset(p.wait(t, p.options.Timing.First))
		case began := <-timer.C:
			p.once(ctx, t)
			timer.Reset(max(p.wait(t, p.options.Timing.Next)-time.Since(began), 0))
		}
	}
}

func (p *Prober) wait(t *tracked, timing func(*model.Health, float64) time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return timing(&t.target.Health, p.options.Random())
}

// once makes one check and takes note of it.
func (p *Prober) once(ctx context.Context, t *tracked) {
	p.mu.Lock()
	target := t.target
	p.mu.Unlock()
	slots := p.slots
	if target.Health.Check == model.CheckExec {
		slots = p.execs
	}
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return
	}
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, time.Duration(target.Health.Timeout))
	remarks, err := p.attempt(limited, target)
	cancel()
	<-slots
	if ctx.Err() != nil {
		return
	}
	if ownFault(err) {
		p.skip(target, err)
		return
	}
	if p.options.Silent != nil && (errors.Is(err, errTimedOut) || errors.Is(err, unix.EHOSTUNREACH)) {
		p.options.Silent(target)
	}
	if result, changed := p.note(t, began, remarks, err); changed {
		p.options.Changed(result)
	}
}

// skip takes note of a check that this host could not make.
func (p *Prober) skip(t Target, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.skipped.Checks++
	p.skipped.Last = fmt.Sprintf("check server %s of service %s: %s", t.Name, t.Service, err)
}

func (p *Prober) note(t *tracked, began time.Time, remarks Remarks, err error) (result Result, changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.gone {
		return result, false
	}
	now := time.Now()
	changed = t.verdict.Observe(now, err == nil, &t.target.Health)
	t.result = Result{Service: t.target.Service, ID: t.target.ID, Healthy: t.verdict.Healthy(), Succeeded: t.result.Succeeded, Remarks: remarks}
	if err == nil {
		t.result.Succeeded = began
	}
	switch {
	case t.result.Healthy:
	case err != nil:
		t.failure = legible(err.Error())
		t.result.Detail = t.failure
	default:
		failure := t.failure
		if failure == "" { // others have found it unhealthy
			failure = "a failure that is not known here"
		}
		rise, required := int(max(t.target.Health.Rise, 1)), t.verdict.Required(now, &t.target.Health)
		t.result.Detail = fmt.Sprintf("answers again after %s, needs %d successful checks in a row", failure, required)
		if required > rise {
			t.result.Detail += fmt.Sprintf(" (rise is %d, and doubles each time that it fails again soon)", rise)
		}
	}
	return t.result, changed
}

// maxDetail bounds what is passed on of others' words, in bytes.
const maxDetail = 200

// legible makes one short line of it.
func legible(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
	text = strings.TrimSpace(text)
	if len(text) > maxDetail {
		text = strings.ToValidUTF8(text[:maxDetail], "") + " ..."
	}
	return text
}
