package flowcontrol

import (
	"math"
	"strings"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	"k8s.io/apiserver/pkg/util/shufflesharding"
)

const (
	// adjustmentPeriod is the interval at which levels lend each other unused seats. demandSmoothing is the weight of
	// the earlier demand after each period. The weight is one half after five minutes. Both values are upstream's.
	adjustmentPeriod = 10 * time.Second
	demandSmoothing  = 0.977
	// minTarget is the target of a level without demand.
	minTarget = 0.001
	// defaultShares is the default of nominalConcurrencyShares.
	defaultShares = 30
)

// configure creates and updates the levels from their objects, and divides the seats of the server among them.
func (x *Controller) configure(now time.Time) {
	all := map[string]*flowcontrolv1.PriorityLevelConfiguration{}
	for _, c := range bootstrap.MandatoryPriorityLevelConfigurations {
		all[c.Name] = c
	}
	for key, c := range x.configs {
		all[strings.TrimPrefix(key, priorityLevels)] = c
	}
	sum := 0.0
	for _, c := range all {
		shares, _, _ := sharesOf(c)
		sum += shares
	}
	levels := map[string]*level{}
	for name, c := range all {
		l := x.levels[name]
		if l == nil || l.uid != string(c.UID) { // the object is new or was recreated; the old level keeps its requests
			l = &level{name: name, uid: string(c.UID), flows: map[string]*counts{}, recordedAt: now, limit: -1}
		}
		l.configure(c, sum, float64(x.MaxReads+x.MaxWrites))
		levels[name] = l
	}
	for name, l := range x.levels {
		if levels[name] != l {
			x.quiesce(l)
		}
	}
	x.levels = levels
	x.adjustBorrowing(now)
}

// sharesOf returns a level's shares of the seats, and the percentages of its seats that it may lend and borrow. If
// borrowing is -1, the level may borrow any number of seats.
func sharesOf(c *flowcontrolv1.PriorityLevelConfiguration) (shares, lendable, borrowing float64) {
	valueOr := func(p *int32, fallback float64) float64 {
		if p == nil {
			return fallback
		}
		return float64(*p)
	}
	switch {
	case c.Spec.Limited != nil:
		l := c.Spec.Limited
		return valueOr(l.NominalConcurrencyShares, defaultShares), valueOr(l.LendablePercent, 0),
			valueOr(l.BorrowingLimitPercent, -1)
	case c.Spec.Exempt != nil:
		return valueOr(c.Spec.Exempt.NominalConcurrencyShares, 0), valueOr(c.Spec.Exempt.LendablePercent, 0), -1
	}
	return 0, 0, -1
}

func (l *level) configure(c *flowcontrolv1.PriorityLevelConfiguration, sum, total float64) {
	shares, lendable, borrowing := sharesOf(c)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.exempt = c.Spec.Type == flowcontrolv1.PriorityLevelEnablementExempt
	nominal := 0.0
	if sum > 0 {
		nominal = math.Ceil(total * shares / sum)
	}
	l.nominal, l.lower, l.upper = int(nominal), int(nominal-math.Round(nominal*lendable/100)), int(nominal+total)
	if borrowing >= 0 {
		l.upper = int(nominal + math.Round(nominal*borrowing/100))
	}
	l.dealer = nil
	if c.Spec.Limited == nil || c.Spec.Limited.LimitResponse.Queuing == nil {
		return
	}
	queuing := c.Spec.Limited.LimitResponse.Queuing
	dealer, err := shufflesharding.NewDealer(int(queuing.Queues), int(queuing.HandSize))
	if err != nil {
		return // validation rejects such objects
	}
	l.dealer, l.queueLengthLimit = dealer, int(queuing.QueueLengthLimit)
	for len(l.queues) < int(queuing.Queues) {
		l.queues = append(l.queues, &queue{})
	}
	l.queues = l.queues[:queuing.Queues] // waiters in removed queues are still served
}

// adjustBorrowing divides the seats among the levels in proportion to their recorded demand. Each level keeps at least
// its lower limit. It also keeps the seats of its recent peak up to its nominal limit, if enough seats remain after
// the exempt levels.
func (x *Controller) adjustBorrowing(now time.Time) {
	x.nextAdjustment.Store(now.Add(adjustmentPeriod).UnixNano())
	var allocations []allocation
	seats, needed := 0, 0
	for _, l := range x.levels {
		l.mu.Lock()
		peak, smoothed := l.takeDemand(now)
		seats += l.nominal
		if l.exempt {
			l.limit = max(l.lower, peak)
			seats -= l.limit
		} else {
			minimum := max(l.lower, min(l.nominal, peak))
			needed += minimum
			allocations = append(allocations, allocation{
				level: l, minimum: minimum, target: max(smoothed, float64(minimum), minTarget),
			})
		}
		l.mu.Unlock()
	}
	if seats <= needed {
		for i := range allocations {
			allocations[i].minimum = allocations[i].level.lower
		}
	}
	fraction := fairFraction(allocations, float64(seats))
	for _, a := range allocations {
		a.level.mu.Lock()
		a.level.limit = int(math.Round(a.seats(fraction)))
		a.level.dispatch()
		a.level.mu.Unlock()
	}
}

// takeDemand returns the peak demand since the last call and the smoothed demand, and resets the statistics.
func (l *level) takeDemand(now time.Time) (peak int, smoothed float64) {
	l.recordDemand(now)
	if periods := l.demand.ElapsedSeconds / adjustmentPeriod.Seconds(); periods > 0 {
		average, deviation := l.demand.AvgAndStdDev()
		if math.IsNaN(deviation) {
			deviation = 0
		}
		weight := math.Pow(demandSmoothing, periods)
		l.smoothed = max(average+deviation, weight*l.smoothed+(1-weight)*(average+deviation))
	}
	peak = l.peak
	l.demand, l.peak = fairqueuing.Moments{}, l.executing+l.queued
	return peak, l.smoothed
}

// allocation holds the bounds for the number of seats of a level.
type allocation struct {
	level   *level
	minimum int
	target  float64 // number of seats that the level needs
}

// seats returns the given fraction of the target, raised to the minimum or lowered to the level's upper limit.
func (a *allocation) seats(fraction float64) float64 {
	return max(float64(a.minimum), min(float64(a.level.upper), a.target*fraction))
}

// fairFraction returns the fraction of their targets at which the allocations together use all seats. If the upper
// limits do not allow that, each allocation gets its upper limit.
func fairFraction(allocations []allocation, seats float64) float64 {
	low, high := 0.0, 0.0
	for _, a := range allocations {
		high = max(high, float64(a.level.upper)/a.target)
	}
	for range 64 {
		middle, sum := (low+high)/2, 0.0
		for i := range allocations {
			sum += allocations[i].seats(middle)
		}
		if sum < seats {
			low = middle
		} else {
			high = middle
		}
	}
	return high
}
