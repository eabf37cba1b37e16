package session

import (
	"bufio"
	"bytes"
	"errors"
	"io"

	"turnpike/internal/agent"
)

// Lines reads what an agent printed line by line in bounded memory: of a longer
// line the head is kept and the rest is read past.
type Lines struct {
	r   *bufio.Reader
	max int
	err error // what ended the reading, told once its last line was given
}

// NewLines reads lines of at most limit bytes from r.
func NewLines(r io.Reader, limit int) *Lines {
	return &Lines{r: bufio.NewReaderSize(r, 64<<10), max: limit}
}

// Next gives the next line without its end; the text is the caller's to keep. An
// unfinished last line is given too. The error is io.EOF after the last line, or
// whatever ended the reading; a line that came with it is given first.
func (l *Lines) Next() (agent.Line, error) {
	if l.err != nil {
		return agent.Line{}, l.err
	}
	var line agent.Line
	some := false
	for {
		part, err := l.r.ReadSlice('\n')
		some = some || len(part) > 0
		if end := bytes.IndexByte(part, '\n'); end >= 0 {
			part = part[:end]
		}
		if room := l.max - len(line.Text); len(part) > room {
			part, line.Cut = part[:room], true
		}
		line.Text = append(line.Text, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && !some:
			l.err = err
			return agent.Line{}, err
		}
		l.err = err
		line.Text = bytes.TrimSuffix(line.Text, []byte("\r"))
		return line, nil
	}
}
