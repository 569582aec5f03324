package process

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// maxLogLine is the maximum size of a log line in bytes. A longer line is split into parts.
const maxLogLine = 16 << 10

// logFile is a container's log in the format of the kubelet. Each line has the time, the stream, a tag and the text.
// The tag F means that the text is a full line. P means that it is a part of a line.
type logFile struct {
	path string

	mu   sync.Mutex
	file *os.File
}

// open opens the log file at l.path and replaces the file that is open. On an error the old file stays open.
func (l *logFile) open() error {
	if l.path == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(l.path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		l.file.Close()
	}
	l.file = f
	return nil
}

// logStream writes the output of one stream of a container to its log.
type logStream struct {
	log     *logFile
	name    string
	partial []byte // start of a line without its newline
}

// write logs the full lines in data. It keeps the start of an incomplete line until the rest of the line arrives.
func (s *logStream) write(data []byte) {
	var out []byte
	s.partial = append(s.partial, data...)
	for {
		end := bytes.IndexByte(s.partial, '\n')
		if end < 0 && len(s.partial) < maxLogLine {
			break
		}
		if end < 0 || end > maxLogLine {
			out = s.appendLine(out, "P", s.partial[:maxLogLine])
			s.partial = s.partial[maxLogLine:]
			continue
		}
		out = s.appendLine(out, "F", s.partial[:end])
		s.partial = s.partial[end+1:]
	}
	s.writeLines(out)
}

// appendLine appends a line in the log's format to out.
func (s *logStream) appendLine(out []byte, tag string, text []byte) []byte {
	out = append(time.Now().UTC().AppendFormat(out, time.RFC3339Nano), " "+s.name+" "+tag+" "...)
	return append(append(out, text...), '\n')
}

// flush logs an incomplete line with the tag P. So readers of the log see no newline that the container did not write.
func (s *logStream) flush() {
	if len(s.partial) > 0 {
		s.writeLines(s.appendLine(nil, "P", s.partial))
	}
}

func (s *logStream) writeLines(lines []byte) {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	if s.log.file != nil && len(lines) > 0 {
		s.log.file.Write(lines) // if the disk is full, lines are lost and the container continues
	}
}
