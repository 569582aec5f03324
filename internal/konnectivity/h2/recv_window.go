package h2

import "time"

// recvWindow is the receive window of a connection: the number of bytes, of all streams together, that the peer
// may have in flight. Its purpose is not to slow down single streams, which have their own windows. It makes data
// wait in the peer's stream queues, where streams take turns, and not in socket buffers behind megabytes of other
// streams. It therefore grows to twice the bytes that arrive in one round trip, which is enough to keep the
// connection busy.
type recvWindow struct {
	size       int64
	unacked    int64         // received bytes for which no WINDOW_UPDATE has been sent
	lastUpdate time.Time     // time of the last WINDOW_UPDATE
	roundTrip  time.Duration // time from sending the SETTINGS to their acknowledgement; 0 means not yet known
}

// receive counts n received bytes. It returns the increment for the WINDOW_UPDATE to send, or 0 if none is due.
func (w *recvWindow) receive(n int64) (grant int64) {
	if w.unacked += n; w.unacked < w.size/2 {
		return 0
	}
	now := time.Now()
	grant, w.unacked = w.unacked, 0
	if took := now.Sub(w.lastUpdate); took > 0 {
		busy := min(2*grant*int64(w.roundTrip)/int64(took), maxConnWindow)
		if more := busy - w.size; more > 0 {
			w.size += more
			grant += more
		}
	}
	w.lastUpdate = now
	return grant
}
