package await

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/script"
)

func TestWhatIsPromisedAndDoesNotComeBreaksThePromiseUnlessNobodyAnswered(t *testing.T) {
	for _, one := range []struct {
		last   error
		broken bool
	}{
		{errors.New("they are still [1 2 3]"), true},
		{fmt.Errorf("reach the daemon: %w", &url.Error{Op: "Get", URL: "http://ballast", Err: context.DeadlineExceeded}), false},
	} {
		err := script.Try(func() {
			Promised(t.Context(), time.Millisecond, "weights follow", func() error { return one.last })
		})
		var broken *BrokenPromise
		if errors.As(err, &broken) != one.broken || !strings.Contains(err.Error(), "weights follow") {
			t.Errorf("%v: broken %t", err, !one.broken)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("interrupted"))
	err := script.Try(func() {
		Promised(ctx, time.Hour, "weights follow", func() error { return errors.New("not yet") })
	})
	if broken := (*BrokenPromise)(nil); errors.As(err, &broken) || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("interrupted: %v", err)
	}
}
