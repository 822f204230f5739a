package acceptance

import "testing"

// The limit rises below the band and falls above it, as the paper compares parts: here in exact hundredths.
func TestBoundsAreThoseOfTheRatio(t *testing.T) {
	for window := uint16(1); window <= 300; window++ {
		for margin := uint8(0); margin <= 50; margin++ {
			low, high := Bounds(window, margin)
			for accepted := uint16(0); accepted <= window; accepted++ {
				part, half := 100*int(accepted), 50*int(window)
				rises, falls := part < half-int(margin)*int(window), part > half+int(margin)*int(window)
				if (accepted < low) != rises || (accepted > high) != falls {
					t.Fatalf("window %d, margin %d: %d accepted: bounds %d and %d", window, margin, accepted, low, high)
				}
			}
		}
	}
}

func TestLimitFollowsTheLoad(t *testing.T) {
	d := Dynamic{Window: 50, Limit: 1}
	d.Low, d.High = Bounds(50, 10)
	for range 50 * 20 { // the load is what it is: nothing is accepted before the limit has passed it
		d.Accept(9)
	}
	if d.Limit != 9 && d.Limit != 10 {
		t.Errorf("the limit is %d with a load of 9", d.Limit)
	}
	for range 50 * 20 {
		d.Accept(0)
	}
	if d.Limit > 1 {
		t.Errorf("the limit is %d with a load of 0", d.Limit)
	}
	d = Dynamic{Window: 1, Low: 1, High: 1, Limit: ^uint32(0)}
	if d.Accept(^uint32(0)); d.Limit != ^uint32(0) {
		t.Errorf("the greatest limit has become %d", d.Limit)
	}
}

func TestHalfOfTheAttemptsAreAccepted(t *testing.T) {
	d := Dynamic{Window: 50, Limit: 1}
	d.Low, d.High = Bounds(50, 10)
	accepted, load := 0, uint32(0)
	const attempts = 50 * 400
	for i := range attempts { // the load moves through 0..19, evenly
		load = uint32(i*7) % 20
		if d.Accept(load) && i >= attempts/2 {
			accepted++
		}
	}
	if part := float64(accepted) / (attempts / 2); part < 0.4 || part > 0.6 {
		t.Errorf("%.2f were accepted", part)
	}
}
