package runtime

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	cri "k8s.io/cri-api/pkg/apis"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/trellis-k8s/trellis/cluster/internal/runtime/process"
)

// Images maps image names to programs and folders of this machine.
type Images struct {
	root     string
	mappings []mapping

	mu       sync.Mutex
	resolved map[string]image // images in use, by name and by ID
}

var _ cri.ImageManagerService = &Images{}

type mapping struct {
	name *regexp.Regexp
	path string
}

// image is a resolved image. The pause image has no path.
type image struct {
	name, path string
	folder     bool
	size       int64
}

const pauseImage = "registry.k8s.io/pause"

// NewImages parses mappings of the form NAME=PATH. The first mapping that matches an image is used. A * in NAME matches
// any characters, and a * in PATH is replaced by them. A name without a tag or digest matches all tags. root is the
// folder of the runtime.
func NewImages(root string, mappings ...string) (*Images, error) {
	i := &Images{root: root, resolved: map[string]image{}}
	for _, m := range mappings {
		if err := i.add(m, ""); err != nil {
			return nil, err
		}
	}
	return i, nil
}

// AddFile adds the mappings of a file with one mapping per line. # starts a comment. Paths are relative to the file's
// folder.
func (i *Images) AddFile(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("reading images: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if err := i.add(line, filepath.Dir(file)); err != nil {
			return fmt.Errorf("%s:%d: %w", file, n, err)
		}
	}
	return lines.Err()
}

func (i *Images) add(text, folder string) error {
	name, path, ok := strings.Cut(text, "=")
	if name, path = strings.TrimSpace(name), strings.TrimSpace(path); !ok || name == "" || path == "" {
		return fmt.Errorf("invalid image mapping %q: want NAME=PATH, for example gcr.io/my/app:1.0=./bin/app", text)
	}
	if strings.Count(path, "*") > strings.Count(name, "*") {
		return fmt.Errorf("invalid image mapping %q: PATH contains more * than NAME", text)
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(folder, path)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	pattern := strings.ReplaceAll(regexp.QuoteMeta(name), `\*`, "(.*)")
	if last := name[strings.LastIndex(name, "/")+1:]; !strings.ContainsAny(last, ":@*") {
		pattern += "(?:[:@].*)?"
	}
	compiled, err := regexp.Compile("^" + pattern + "$")
	i.mappings = append(i.mappings, mapping{compiled, path})
	return err
}

// resolve returns the program or folder of an image. The parameter name is the name of the image. It may also be the
// ID of an image that was resolved before.
func (i *Images) resolve(name string) (image, error) {
	i.mu.Lock()
	found, known := i.resolved[name]
	i.mu.Unlock()
	if known {
		name = found.name
	}
	img := image{name: name}
	if short, _, _ := strings.Cut(name, ":"); short == pauseImage {
		return img, nil
	}
	short := strings.TrimPrefix(strings.TrimPrefix(name, "docker.io/"), "library/")
	for _, m := range i.mappings {
		for _, alias := range []string{name, short} {
			if parts := m.name.FindStringSubmatch(alias); parts != nil {
				return i.inspect(img, m.path, parts[1:])
			}
		}
	}
	return img, fmt.Errorf(
		"image %q is not mapped to a program: map it with trellis-cluster up --image %s=PATH", name, name)
}

// inspect completes img with the file at path. Each * in path is replaced by one of the texts in stars, which the * in
// the name of the mapping have matched.
func (i *Images) inspect(img image, path string, stars []string) (image, error) {
	for _, star := range stars {
		if strings.Contains(star, "..") {
			return img, fmt.Errorf("image %q: the text for a * in the mapping must not contain .., "+
				"because it becomes part of the path", img.name)
		}
		path = strings.Replace(path, "*", star, 1)
	}
	img.path = path
	info, err := os.Stat(path)
	if err != nil {
		return img, fmt.Errorf("cannot find the program of image %q: %w", img.name, err)
	}
	img.folder, img.size = info.IsDir(), info.Size()
	if !img.folder && info.Mode()&0o111 == 0 {
		return img, fmt.Errorf("image %q is mapped to %s, which is not executable", img.name, path)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.resolved[img.name], i.resolved[img.id()] = img, img
	return img, nil
}

func (img image) id() string {
	if img.path == "" {
		return img.name
	}
	return "file://" + img.path
}

// criImage converts the image to the type of CRI.
func (img image) criImage() *v1.Image {
	return &v1.Image{
		Id: img.id(), RepoTags: []string{img.name}, Size: uint64(max(img.size, 1)),
		Uid:  &v1.Int64Value{Value: nonRootUser},
		Spec: &v1.ImageSpec{Image: img.id(), UserSpecifiedImage: img.name}, Pinned: true,
	}
}

// command returns the file to execute and the argv of a container. program is "" if argv[0] must be looked up.
func (img image) command(command, args []string) (program string, argv []string, err error) {
	argv = append(append(argv, command...), args...)
	switch {
	case img.path == "" && len(argv) == 0:
		return process.Pause, []string{process.Pause}, nil
	case img.path == "" || img.folder:
		if len(argv) == 0 {
			return "", nil, fmt.Errorf(
				"image %q is the folder %s, which has no default command: set the command of the container",
				img.name, img.path)
		}
		return "", argv, nil
	case len(command) == 0:
		argv = append([]string{filepath.Base(img.path)}, args...)
	}
	return img.path, argv, nil
}

// ListImages lists the images that have been resolved.
func (i *Images) ListImages(context.Context, *v1.ImageFilter) ([]*v1.Image, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	var list []*v1.Image
	for key, img := range i.resolved {
		if key == img.name {
			list = append(list, img.criImage())
		}
	}
	return list, nil
}

// ImageStatus returns the status of an image. If the image cannot be resolved, the response contains no image. The
// kubelet then pulls the image, and PullImage returns the reason.
func (i *Images) ImageStatus(_ context.Context, spec *v1.ImageSpec, _ bool) (*v1.ImageStatusResponse, error) {
	img, err := i.resolve(spec.GetImage())
	if err != nil {
		return &v1.ImageStatusResponse{}, nil
	}
	return &v1.ImageStatusResponse{Image: img.criImage()}, nil
}

// PullImage resolves an image and returns its ID.
func (i *Images) PullImage(
	_ context.Context, spec *v1.ImageSpec, _ *v1.AuthConfig, _ *v1.PodSandboxConfig,
) (string, error) {
	img, err := i.resolve(spec.GetImage())
	return img.id(), err
}

// RemoveImage does nothing, because the files of images do not belong to the runtime.
func (i *Images) RemoveImage(context.Context, *v1.ImageSpec) error { return nil }

// ImageFsInfo returns the file system of the runtime's folder. Images use no space on it.
func (i *Images) ImageFsInfo(context.Context) (*v1.ImageFsInfoResponse, error) {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(i.root, &stat); err != nil {
		return nil, fmt.Errorf("cannot get the usage of the file system of %s: %w", i.root, err)
	}
	usage := []*v1.FilesystemUsage{{
		Timestamp: time.Now().UnixNano(), FsId: &v1.FilesystemIdentifier{Mountpoint: i.root},
		UsedBytes: &v1.UInt64Value{}, InodesUsed: &v1.UInt64Value{},
	}}
	return &v1.ImageFsInfoResponse{ImageFilesystems: usage, ContainerFilesystems: usage}, nil
}

// Close does nothing.
func (i *Images) Close(context.Context) error { return nil }
