package process

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Files in the folder of a container. Who finds them knows all there is to know about it.
const (
	SpecFile    = "spec.json"    // what to start
	StartedFile = "started.json" // written before the first instruction of the container's command
	ExitFile    = "exit.json"    // written when it has ended, or could not be started
	socketFile  = "shim.sock"
	shimLog     = "shim.log"
)

// Spec is a container to be started.
type Spec struct {
	Folder string // of the container

	Sandbox ID  // whose namespaces it joins
	Join    int // CLONE_NEW…: which of them
	PIDOf   *ID // the process whose PID namespace it joins in place of the sandbox's
	New     int // CLONE_NEW…: which it gets for itself

	Program string // is executed whatever the command says
	Images  string // a folder where the command is looked up first
	Args    []string
	Env     []string
	Dir     string

	User       *User
	NoNewPrivs bool // no program that it runs gains rights, as by its setuid bit

	Mounts []Mount
	Shm    string // the pod's /dev/shm
	AllDev bool   // the host's /dev

	Cgroups     []string
	OOMScoreAdj int
	Log         string
	TTY         bool
	Stdin       bool
	StdinOnce   bool
}

// Mount is a file or folder of the host, and where the container sees it.
type Mount struct {
	Source, Target      string
	ReadOnly, Recursive bool // Recursive: what is mounted below is read-only as well
}

// Started says that a container runs, and since when.
type Started struct {
	Init ID
	At   time.Time
}

// Exit is how a container ended.
type Exit struct {
	Code    int32
	Reason  string
	Message string
	At      time.Time
}

// startFailed is the exit code of what could not be started, as other runtimes have it.
const startFailed = 128

// WriteFile replaces a file by the JSON of a value, whole or not at all.
func WriteFile(name string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	next := filepath.Join(filepath.Dir(name), fmt.Sprintf(".%s.%d", filepath.Base(name), os.Getpid())) // others may write it, too
	if err := os.WriteFile(next, data, 0o600); err != nil {
		_ = os.Remove(next)
		return err
	}
	return os.Rename(next, name)
}

// ReadFile reads what WriteFile has written.
func ReadFile(name string, value any) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, value)
}
