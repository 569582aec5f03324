package object

// Cursor reads JSON from front to back without building a tree: what nobody asks
// for is stepped over. It trusts the JSON as Field does: of malformed input it may
// make nothing, but it never panics and always ends. The strings it gives out point
// into the JSON where nothing is escaped.
type Cursor struct{ scanner }

// NewCursor returns a Cursor at the first value of js, which must not change while
// the cursor or a string from it is in use.
func NewCursor(js []byte) *Cursor {
	c := &Cursor{scanner{s: alias(js)}}
	c.peek()
	return c
}

// Members calls f for each member of the object at the cursor, which then stands
// at the member's value. f reads the value with at most one call on the cursor, or leaves it
// to be skipped. Anything but an object is skipped.
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
		if !c.visit(func() { f(key) }) {
			return
		}
	}
}

// Elements calls f for each element of the array at the cursor, as Members does.
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
			c.end()
			return
		}
		if !c.visit(func() { f(i) }) {
			return
		}
	}
}

// visit runs read at the value at the cursor and goes on behind it and the comma;
// false where the JSON is broken.
func (c *Cursor) visit(read func()) bool {
	start := c.pos
	read()
	if c.pos == start && !c.skip() || c.bad || c.pos == start {
		c.end()
		return false
	}
	if c.peek() == ',' {
		c.pos++
	}
	return true
}

func (c *Cursor) end() {
	c.bad = true
	c.pos = len(c.s)
}

// Kind is the first byte of the value at the cursor: '{', '[', '"', 't', 'f', 'n', '-' or a
// digit; 0 at the end.
func (c *Cursor) Kind() byte { return c.peek() }

// Broken reports whether the JSON read so far was malformed.
func (c *Cursor) Broken() bool { return c.bad }

// FirstKey is the first key of the object at the cursor, which does not move; "" where there is none.
func (c Cursor) FirstKey() string {
	if c.peek() != '{' {
		return ""
	}
	c.pos++
	key, _ := c.member()
	return key
}

// Raw steps over the value and returns its JSON, without a copy.
func (c *Cursor) Raw() string {
	c.peek()
	start := c.pos
	if !c.skip() {
		c.end()
		return ""
	}
	return c.s[start:c.pos]
}

// Text reads a string; "" for any other value.
func (c *Cursor) Text() string {
	var v string
	if c.peek() == 0 || !c.text(&v) {
		c.end()
	}
	return v
}

// Bool reads true; anything else is false.
func (c *Cursor) Bool() bool { return c.Raw() == "true" }

// Int reads an integer; 0 for any other value.
func (c *Cursor) Int() int64 {
	var v int64
	if c.peek() == 0 || !c.integer(&v) {
		c.end()
	}
	return v
}

// Texts reads a list of strings; nil if the value is no list.
func (c *Cursor) Texts() []string {
	if c.peek() == 0 {
		c.end()
		return nil
	}
	list, ok := c.list()
	if !ok {
		c.end()
		return nil
	}
	return list
}
