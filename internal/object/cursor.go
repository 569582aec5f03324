package object

// Cursor reads JSON from start to end without building a tree. It skips the values that the caller does not read.
// Like Field, it may return nothing for malformed input, but it never panics and always terminates. Returned
// strings without escapes point into the JSON.
type Cursor struct{ scanner }

// NewCursor returns a Cursor at the first value of js. js must not change while the cursor or a string returned by
// it is in use.
func NewCursor(js []byte) *Cursor {
	c := &Cursor{scanner{s: alias(js)}}
	c.peek()
	return c
}

// Members calls f for each member of the object at the cursor. During the call the cursor is at the member's value.
// f reads the value with at most one call on the cursor. Members skips a value that f does not read. It skips the
// value at the cursor if that is not an object.
func (c *Cursor) Members(f func(key string)) {
	if c.peek() != '{' {
		c.skip()
		return
	}
	c.pos++
	for {
		key, ok := c.member()
		if !ok {
			return
		}
		if !c.readValue(func() { f(key) }) {
			return
		}
	}
}

// Elements calls f for each element of the array at the cursor, in the same way as Members.
func (c *Cursor) Elements(f func(index int)) {
	if c.peek() != '[' {
		c.skip()
		return
	}
	c.pos++
	for i := 0; ; i++ {
		switch c.peek() {
		case ']':
			c.pos++
			return
		case 0, ',', '}', ':':
			c.fail()
			return
		}
		if !c.readValue(func() { f(i) }) {
			return
		}
	}
}

// Fields reads the members of the object at the cursor. Each key of fields is the name of a member, and its value is a
// pointer to the variable for the member's value, or a function that reads the value. A variable is a string, a
// boolean, an int32, a list of strings, or a Raw. Other members are skipped.
func (c *Cursor) Fields(fields map[string]any) {
	c.Members(func(key string) {
		switch to := fields[key].(type) {
		case *string:
			*to = c.Text()
		case *bool:
			*to = c.Bool()
		case *int32:
			*to = int32(c.Int())
		case *[]string:
			*to = c.Texts()
		case *Raw:
			*to = Raw(c.Raw())
		case func():
			to()
		}
	})
}

// Raw is the JSON of a value.
type Raw string

// readValue calls read with the cursor at a value, then moves past that value and a following comma. It returns
// false if the JSON is malformed.
func (c *Cursor) readValue(read func()) bool {
	start := c.pos
	read()
	if c.pos == start && !c.skip() || c.bad || c.pos == start {
		c.fail()
		return false
	}
	if c.peek() == ',' {
		c.pos++
	}
	return true
}

func (c *Cursor) fail() {
	c.bad = true
	c.pos = len(c.s)
}

// Kind returns the first byte of the value at the cursor: '{', '[', '"', 't', 'f', 'n', '-' or a digit. It returns
// 0 at the end.
func (c *Cursor) Kind() byte { return c.peek() }

// Broken reports whether the JSON read so far was malformed.
func (c *Cursor) Broken() bool { return c.bad }

// FirstKey returns the first key of the object at the cursor, without moving the cursor. It returns "" if there is
// no such key.
func (c Cursor) FirstKey() string {
	if c.peek() != '{' {
		return ""
	}
	c.pos++
	key, _ := c.member()
	return key
}

// Raw moves past the value at the cursor and returns its JSON, which is not a copy.
func (c *Cursor) Raw() string {
	c.peek()
	start := c.pos
	if !c.skip() {
		c.fail()
		return ""
	}
	return c.s[start:c.pos]
}

// Text reads a string. It returns "" for any other value.
func (c *Cursor) Text() string {
	var v string
	if c.peek() == 0 || !c.text(&v) {
		c.fail()
	}
	return v
}

// Bool reads a boolean. It returns false for any value other than true.
func (c *Cursor) Bool() bool { return c.Raw() == "true" }

// Int reads an integer. It returns 0 for any other value.
func (c *Cursor) Int() int64 {
	var v int64
	if c.peek() == 0 || !c.integer(&v) {
		c.fail()
	}
	return v
}

// Texts reads a list of strings. It returns nil if the value is not a list.
func (c *Cursor) Texts() []string {
	if c.peek() == 0 {
		c.fail()
		return nil
	}
	list, ok := c.list()
	if !ok {
		c.fail()
		return nil
	}
	return list
}
