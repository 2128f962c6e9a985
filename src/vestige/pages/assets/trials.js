// A click, Enter or Space enlarges a picture of a trial in place; the same or Escape closes it.
(function () {
  var pictures = document.querySelectorAll('.triplets .pic:not(.withheld)');
  var open = null;
  var close = function () {
    if (!open) return;
    open.classList.remove('enlarged');
    open.setAttribute('aria-expanded', 'false');
    open.style.removeProperty('--shift');
    open.style.removeProperty('--rise');
    open = null;
  };
  var toggle = function (picture) {
    var same = picture === open;
    close();
    if (same) return;
    open = picture;
    picture.classList.add('enlarged');
    picture.setAttribute('aria-expanded', 'true');
    // It stays inside the page and, where it fits, inside the window.
    var box = picture.getBoundingClientRect();
    var right = box.right - picture.closest('.trials').getBoundingClientRect().right;
    var below = Math.min(box.bottom + 12 - innerHeight, box.top - 12);
    if (right > 0) picture.style.setProperty('--shift', -right + 'px');
    if (below > 0) picture.style.setProperty('--rise', -below + 'px');
  };
  pictures.forEach(function (picture) {
    picture.setAttribute('role', 'button');
    picture.setAttribute('tabindex', '0');
    picture.setAttribute('aria-expanded', 'false');
    picture.addEventListener('click', function () { toggle(picture); });
    picture.addEventListener('keydown', function (event) {
      if (event.key !== 'Enter' && event.key !== ' ') return;
      event.preventDefault();
      toggle(picture);
    });
  });
  addEventListener('keydown', function (event) { if (event.key === 'Escape') close(); });
})();
