package handlers

import (
	"net/http"
	"strings"
	"time"

	"github.com/gorilla/websocket"

	"github.com/trellis-k8s/trellis/internal/api/encoding"
	"github.com/trellis-k8s/trellis/internal/api/request"
)

// bearerProtocol is the prefix of a subprotocol that carries the bearer token of a browser. The server never
// selects it.
const bearerProtocol = "base64url.bearer.authorization.k8s.io."

// webSocket is a sink that sends each event as one message: a text message for JSON, otherwise a binary message.
type webSocket struct {
	conn   *websocket.Conn
	kind   int
	check  func() error // returns an error if the server must not send events; nil if it always may
	closed chan struct{}
}

// upgrade upgrades the connection to a WebSocket. On failure it writes an error response.
func (q call) upgrade() (sink, error) {
	// Every request is authenticated, so any origin is allowed.
	u := websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }}
	for _, p := range websocket.Subprotocols(q.R) {
		if !strings.HasPrefix(p, bearerProtocol) {
			u.Subprotocols = append(u.Subprotocols, p)
		}
	}
	q.Status = http.StatusSwitchingProtocols
	conn, err := u.Upgrade(q.W, q.R, nil)
	if err != nil {
		q.Status = http.StatusBadRequest
		return nil, err
	}
	s := &webSocket{conn: conn, kind: websocket.BinaryMessage, closed: make(chan struct{})}
	if f, fenced := q.W.(interface{ Check() error }); fenced {
		s.check = f.Check
	}
	if q.Media.Format == encoding.FormatJSON {
		s.kind = websocket.TextMessage
	}
	go s.listen()
	return s, nil
}

// listen discards messages from the client and answers its pings until the connection ends.
func (s *webSocket) listen() {
	defer close(s.closed)
	s.conn.SetReadLimit(64 << 10)
	for {
		if _, _, err := s.conn.NextReader(); err != nil {
			return
		}
	}
}

func (s *webSocket) send(frames []byte, ends []int) error {
	if err := s.conn.SetWriteDeadline(time.Now().Add(request.SlowClient)); err != nil {
		return err
	}
	start := 0
	for _, end := range ends {
		if s.check != nil {
			if err := s.check(); err != nil {
				return err
			}
		}
		if err := s.conn.WriteMessage(s.kind, frames[start:end]); err != nil {
			return err
		}
		start = end
	}
	return nil
}

func (s *webSocket) onDisconnect(f func()) {
	go func() {
		<-s.closed
		f()
	}()
}

func (s *webSocket) updateDeadline(time.Time) {}

func (s *webSocket) close() {
	message := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	// An error means that the client has disconnected.
	_ = s.conn.WriteControl(websocket.CloseMessage, message, time.Now().Add(time.Second))
	_ = s.conn.Close()
	<-s.closed
}
